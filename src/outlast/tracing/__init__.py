"""A job's events as OpenTelemetry spans, for whoever follows them: the job, its generations and its recoveries.

Nothing here runs within the job. opentelemetry is an extra, loaded when spans are made.
"""

from outlast.tracing.spans import EventSpans

__all__ = ["EventSpans"]
