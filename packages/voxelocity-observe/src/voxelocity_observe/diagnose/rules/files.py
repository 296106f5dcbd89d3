"""Rules on where the data comes from: slow storage, many small files, the shared memory for handing over batches."""

from __future__ import annotations

from voxelocity_observe.core.host import is_on_network
from voxelocity_observe.core.quantities import bytes_text, count_text, duration_text
from voxelocity_observe.diagnose.accounting import experiment_s, part_s
from voxelocity_observe.diagnose.facts import Facts
from voxelocity_observe.diagnose.rules.loader_model import fit_loader_model, kind_share, making_stacks, training_loader
from voxelocity_observe.diagnose.rules.loading import making_lines, waiting_text
from voxelocity_observe.diagnose.rules.rule import Found, rule
from voxelocity_observe.diagnose.rules.seen import fits_in_memory, is_shown, num_samples, stack_line, waits_for_data
from voxelocity_observe.diagnose.rules.words import percent

# Share of making a batch from which the storage is what to change.
_STORAGE_SHARE = 0.5
_READ_SHARE = 0.3
# Below this, opening a file costs more than reading it, on disks and over networks alike.
_SMALL_BYTES = 128 * 1024
_FILES_AN_ITEM = 8
_SHM_FULL_SHARE = 0.9
# What Docker gives a container; two workers with two batches of 96^3 patches each need more.
_SHM_SMALL_BYTES = 256 * 1024**2


@rule("VX121", "The storage is slower than the network", pool="data")
def slow_storage(facts: Facts) -> Found | None:
    """Reading a step's files alone takes a good part of the step."""
    made = fit_loader_model(facts)
    files, byte_s = facts.files, experiment_s(facts, "storage")
    if made is None or files is None or byte_s is None or made.num_batches == 0 or not waits_for_data(facts):
        return None
    # A file that is opened for its header and again for its voxels is read once.
    num_uses = max(1, files.num_uses or files.num_opens)
    file_bytes = files.read_bytes / max(1, files.num_opens)
    batch_bytes = file_bytes * num_uses / made.num_batches
    cached_s = experiment_s(facts, "storage, page cache") or 0.0
    # What fits in memory comes from the storage once, and then from the system's page cache.
    is_kept = fits_in_memory(facts, int(file_bytes * files.num_files))
    share = min(1.0, files.num_files / num_uses) if is_kept else 1.0
    kept_s = batch_bytes * cached_s
    read_s = share * batch_bytes * byte_s + (1.0 - share) * kept_s
    if read_s < _STORAGE_SHARE * made.made_s:
        return None
    kind = facts.host.file_system if facts.host else ""
    source = f"{kind}, a network file system" if is_on_network(kind) else kind or "its storage"
    return Found(
        cause=f"A batch reads {bytes_text(batch_bytes)} from {source}, at {bytes_text(1.0 / byte_s)} a second: "
        f"{duration_text(read_s)} of the {duration_text(made.made_s)} that making it takes.",
        evidence=[
            f"read again, not from the page cache: {bytes_text(1.0 / byte_s)} a second",
            f"from the page cache: {bytes_text(1.0 / cached_s)} a second" if cached_s else "",
            *making_lines(made),
        ],
        saves_s=made.gain_s(min(1.0, max(0.0, read_s - kept_s) / made.made_s)),
        basis="measured" if cached_s else "estimated",
        change="rsync -a DATA/ /local/DATA/  # copy the data to a local disk first, and train from there",
        where=made.loader.place,
    )


@rule("VX122", "Each item is read from many small files", pool="data")
def small_files(facts: Facts) -> Found | None:
    """Opening files costs more than reading them."""
    made, files = fit_loader_model(facts), facts.files
    if made is None or files is None or files.num_opens == 0 or made.num_items == 0 or not waits_for_data(facts):
        return None
    each_bytes, an_item = files.read_bytes / files.num_opens, files.num_opens / made.num_items
    share = kind_share(facts, "read")
    if each_bytes > _SMALL_BYTES or an_item < _FILES_AN_ITEM or share < _READ_SHARE:
        return None
    stacks = making_stacks(facts)
    return Found(
        cause=f"An item opens {an_item:.0f} files of {bytes_text(each_bytes)} on average; {percent(share)} of "
        f"making batches is opening and reading them, and {waiting_text(facts)}.",
        evidence=[
            f"{count_text(files.num_opens, 'open')} of {count_text(files.num_files, 'file')}",
            *[stack_line(stack, num_samples(stacks)) for stack in stacks if stack.kind == "read"][:2],
        ],
        saves_s=made.gain_s(share * (1.0 - 1.0 / an_item)),
        change="# once, before the training: one file per item\n"
        "numpy.save(f'{case}.npy', numpy.stack([read(file) for file in files_of(case)]))",
        where=made.loader.place,
    )


@rule("VX123", "Shared memory is too small for what workers hand over", pool="data")
def shared_memory(facts: Facts) -> Found | None:
    """/dev/shm is nearly full, or only as large as a container's default."""
    host, loader = facts.host, training_loader(facts)
    if host is None or host.shm_size_bytes <= 0 or loader is None or loader.num_workers == 0:
        return None
    used = host.shm_used_bytes / host.shm_size_bytes
    if used < _SHM_FULL_SHARE and host.shm_size_bytes > _SHM_SMALL_BYTES:
        return None
    size = bytes_text(host.shm_size_bytes)
    return Found(
        cause=f"Workers hand over their batches through /dev/shm, which holds {size}; {percent(used)} of it was used. "
        "A worker that finds it full ends with a bus error.",
        evidence=[
            f"/dev/shm: {bytes_text(host.shm_used_bytes)} of {size} used at most",
            count_text(loader.num_workers, "worker"),
        ],
        change="docker run --shm-size=8g ...  # or --ipc=host",
        is_cause=used >= _SHM_FULL_SHARE,
    )


@rule("VX124", "Files are read over the network at each use", pool="data")
def network_files(facts: Facts) -> Found | None:
    """The files are on a network file system, and much of making batches is reading; the storage was not measured."""
    host = facts.host
    if host is None or not is_on_network(host.file_system) or experiment_s(facts, "storage") is not None:
        return None
    share = kind_share(facts, "read")
    if share < _READ_SHARE or not is_shown(facts, part_s(facts, "wait")):
        return None
    made, stacks = fit_loader_model(facts), making_stacks(facts)
    return Found(
        cause=f"{percent(share)} of making batches is reading files from {host.file_system}, a network file "
        f"system; {waiting_text(facts)}.",
        evidence=[stack_line(stack, num_samples(stacks)) for stack in stacks if stack.kind == "read"][:2],
        saves_s=made.gain_s(share) if made else None,
        change="rsync -a DATA/ /local/DATA/  # copy the data to a local disk first, and train from there",
    )
