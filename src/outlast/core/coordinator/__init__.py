"""A coordinator without its sockets: connections, silence, stragglers and terms around the job; and its observers."""
