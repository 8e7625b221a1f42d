"""What a run leaves behind: its directory, tables and pictures."""
