"""What the workers of a loader do, and how many of them would keep up."""
