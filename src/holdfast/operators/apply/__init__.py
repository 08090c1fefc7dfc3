"""`apply`: a user function with state and timers."""
