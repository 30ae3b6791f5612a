"""Plans and carries out the smallest action that is still safe."""
