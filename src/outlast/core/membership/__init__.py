"""Who takes part: admission, attendance, silence, and who gets which rank."""
