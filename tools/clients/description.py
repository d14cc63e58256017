"""The description of all routes, by the rules of OpenAPI itself."""

import json
import urllib.request

from openapi_spec_validator import OpenAPIV31SpecValidator

from shared import Suite

suite = Suite("openapi")


def tests():
    return suite.list


@suite.test("description")
def the_description_is_valid(url):
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=60) as answer:
        description = json.load(answer)
    OpenAPIV31SpecValidator(description).validate()
    assert len(description["paths"]) > 35, len(description["paths"])
