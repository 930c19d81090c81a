"""Sizes for people. Called by the planner; pure."""


def human_bytes(size_bytes: int) -> str:
    """Bytes with a binary unit and three digits at most, such as 86.7Mi or 131Gi; "" for none."""
    if size_bytes <= 0:
        return ""
    size, unit = float(size_bytes), ""
    for larger in ("Ki", "Mi", "Gi", "Ti"):
        if size < 1024:  # noqa: PLR2004 - the base of the binary units
            break
        size, unit = size / 1024, larger
    return f"{size:.0f}{unit}" if size >= 100 or not unit else f"{size:.3g}{unit}"  # noqa: PLR2004
