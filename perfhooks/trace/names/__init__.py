"""Words as they really occur: torch's own, libraries' that communicate, and whose line a frame is."""
