"""What crosses the bus. Import from the submodules; nothing here has an effect."""
