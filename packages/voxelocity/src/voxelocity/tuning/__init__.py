"""Settings of this machine, measured: trials in processes of their own, a search over them, and what it found.

- `trial` runs one command with limits and returns what became of it, `space` says what is searched, `store` keeps the
  trials (alone, it imports Optuna), `study` searches. None of them knows what a trial measures.
- `measure_run`, `measure_training`, `learning_rate`: the processes of our own trials; `answer` is what they write.
- `knobs`, `costs`: what is searched and minimized for our runs. `dice` compares trainings, `keeping` keeps what was
  found, `task` and `tune` are the whole of it, with `by_dice` and `by_range`; `result` and `page` show it.
"""
