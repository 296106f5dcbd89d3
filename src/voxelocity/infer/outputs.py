"""x"""


def file_name(case_id: str) -> str:
    """Of the prediction of a case."""
    return f"{case_id}.nii.gz"
