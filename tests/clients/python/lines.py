"""What the Python programs share: requests and answers as JSON lines, and base64. The operations: matrix/program.py."""

import base64
import json
import sys
import traceback


def decoded(text):
    return None if text is None else base64.b64decode(text)


def encoded(data):
    if isinstance(data, str):
        data = data.encode()
    return None if data is None else base64.b64encode(data).decode()


def serve(operations):
    """Answers each line by the operation that it names."""
    for line in sys.stdin:
        request = json.loads(line)
        identity, operation = request.pop("id"), request.pop("op")
        try:
            answer = {"id": identity, "result": operations[operation](**request)}
        except Exception as error:
            traceback.print_exc()
            answer = {"id": identity, "error": repr(error), "code": -1}
        print(json.dumps(answer), flush=True)
