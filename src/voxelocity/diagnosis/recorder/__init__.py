"""Runs inside a watched program, which may be anyone's. It needs the standard library alone, and torch (2.1 or newer)
once the program has imported it; it imports nothing of Voxelocity, as the program's Python may be another one, from 3.9
on, in which Voxelocity is not installed."""
