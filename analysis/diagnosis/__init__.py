"""What held a run back, told from client and server figures over the same seconds."""
