"""What runs inside a training process. It never imports agent code."""
