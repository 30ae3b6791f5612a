"""What a training process imports: steps, flight recorder, commands."""
