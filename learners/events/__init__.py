"""Events of recordings: neighbouring windows with one class, merged, counted and evaluated."""
