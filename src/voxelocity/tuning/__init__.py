"""Settings of this machine, measured: trials in processes of their own, a search over them, and what it found."""
