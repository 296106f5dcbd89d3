"""Watches a program that trains, says what holds it back, and what a change would bring.

From the lowest to the highest; each knows only those before it:

- `recorder` runs inside the watched program; `findings` has the page of each code.
- `facts`: what was recorded or sampled, as plain records.
- `result`: a finding, a diagnosis and its file. `tracing`: traces of profilers, and a recording as a trace.
- `accounting`: what counts, which lines make batches, where the time went.
- `rules`: facts to findings. `judging`: the rules applied, their findings in order of gain, the one sentence.
- `render`: the screen, the page, the evidence.
- `comparison`: two diagnoses. `watching`: a command under the recorder. `doctor`: what this machine has.
- `session`: from a command, or a folder, to a diagnosis with its files.
"""
