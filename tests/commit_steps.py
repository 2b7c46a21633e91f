"""The steps of the commit protocol in the order a job reaches them (storage.reached); ARCHITECTURE.md says why."""

STEPS = (
    "old-result-removed",
    "journal-begun",
    "tail-dropped",
    "file-created",
    "block-written",
    "data-synced",
    "checkpoint-written",
    "checkpoint-synced",
    "journal-replaced",
    "files-finished",
    "files-sealed",
    "file-named",
    "names-synced",
    "run-written",
    "manifest-written",
    "journal-removed",
)
# Further steps of a job that writes to an object store.
STORE_STEPS = ("file-putting", "file-put", "upload-recorded", "staged-removed")
