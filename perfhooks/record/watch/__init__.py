"""What looks at a training while it runs: requests that it gets, its pace, and its slow steps."""
