"""Why a worker failed: evidence, kernel and GPU state, cause, and what the user's extension decides."""
