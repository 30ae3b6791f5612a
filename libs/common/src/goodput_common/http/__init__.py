"""HTTP plumbing that every service's API shares. Import from the submodules."""
