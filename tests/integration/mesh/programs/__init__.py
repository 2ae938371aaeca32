"""Programs in the place of workers, for tests of the launcher alone."""
