"""Write the files and the report of a window from its saved trace."""
