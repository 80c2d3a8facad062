"""Bytes between processes of a job: proof of the token, frames, TLS, and what a coordinator is started with."""
