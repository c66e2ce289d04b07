"""Two runs side by side: the verdict, what differs besides, and the reason."""
