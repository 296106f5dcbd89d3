"""Runs inside a watched program, which may be anyone's. It needs only the standard library, and torch (2.1 or newer)
once the program has imported it. It imports nothing from Voxelocity, because the program's Python (3.9 or newer) may be
another one, without Voxelocity."""
