"""What the recipes rely on here."""


def options(sampling):
    return {
        "response_feedback": sampling.pop("response_feedback", True),
        "interleaved_thinking": sampling.pop("interleaved_thinking", False),
    }
