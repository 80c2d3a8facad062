"""Notices to people: an HTTP request for what they want to be woken by. Sent beside the job, which never waits."""
