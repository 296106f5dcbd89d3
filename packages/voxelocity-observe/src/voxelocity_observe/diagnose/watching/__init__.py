"""Runs a command under the recorder: whether it can be watched, how it runs, and what the machine did meanwhile.

`attach` sets the environment of a program, `command` runs it, and recognizes processes that outlive it by that
environment.
"""
