"""Runs inside a watched program, which may be anyone's. It needs only the standard library, and torch (2.1 or newer)
once the program has imported it. It imports nothing from Voxelocity, because the program's Python (3.9 or newer) may be
another one, without Voxelocity.

- `site/sitecustomize`, `recording`, `process`, `writer`: a process from start to end, its children, its file.
- `hooks`: callbacks after imports, attributes replaced and restored exactly, the one audit hook.
- `timeline`, `steps`: the part that the training thread is in; stretches, divided into steps and passes.
- `torch_hooks`, `networks`: where torch is hooked; what networks are called with.
- `loaders`, `batches`: waiting for batches; how they are made, in the process, its threads and its workers.
- `lines`: whose code it is, and which line of the user's own code is running.
- `extras`: what is recorded in addition (`stacks`, `syncs`, `transforms`, `files`); one that fails is dropped.
- `profile`, `training`, `describe`, `growth`: a profiler around three steps; sums, settings, what grows.
- `conductor`, `rounds`, `experiments`: warm-up, counted and profiled steps, resident batches, each stage alone.
- `kept_state`, `guard`: the state of the training copied and restored, its files guarded.
- `ending`: the end of a program without steps; the last resort, which leaves no file half-written.
"""
