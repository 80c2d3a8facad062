"""A job's events as metrics for Prometheus: at most 60 series, whatever its size, and none per rank.

`meter` is pure; only `export` knows prometheus-client, which is an extra.
"""
