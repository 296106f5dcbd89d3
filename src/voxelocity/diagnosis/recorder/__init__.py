"""Runs inside a watched program, which may be anyone's. It needs the standard library alone, and torch once the program
has imported it; it imports nothing of Voxelocity, as the program's Python may be another one."""
