"""How a process ends or splits while something is being recorded, and which signals reach it meanwhile."""
