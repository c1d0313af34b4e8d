"""Enfold beside its peers and its floors, interleaved in one run; the ratios count, not the times."""
