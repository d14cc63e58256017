"""What tests of several libraries need."""

MODEL = "smollm2"

# A tool, as OpenAI describes it.
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}

# What even a small model can fill in.
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "grown_up": {"type": "boolean"}},
    "required": ["name", "grown_up"],
    "additionalProperties": False,
}


class Suite:
    """Tests of one library."""

    def __init__(self, library):
        self.library = library
        self.list = []

    def test(self, *features):
        def add(function):
            self.list.append((f"{self.library}: {function.__name__.replace('_', ' ')}", features, function))
            return function

        return add
