"""openpi's own client against our server, and our client against openpi's own server. Both packages need numpy < 2, so
they run in an environment of their own, by these two programs.
"""

CLIENT = """
import sys
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

policy = WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]))
height, width, state, horizon, actions = map(int, sys.argv[2:])
assert "vla_rl" in policy.get_server_metadata(), policy.get_server_metadata()
for tick in range(20):
    observation = {
        "observation/front": np.random.randint(256, size=(height, width, 3), dtype=np.uint8),
        "observation/top": np.random.randint(256, size=(height, width, 3), dtype=np.uint8),
        "observation/state": np.random.rand(state),
        "prompt": "do something",
    }
    answer = policy.infer(observation)
    assert answer["actions"].shape == (horizon, actions), answer["actions"].shape
    assert np.isfinite(answer["actions"]).all()
    assert answer["server_timing"]["infer_ms"] > 0
try:
    policy.infer({"prompt": "nothing else"})
except RuntimeError as error:
    assert "observation/front" in str(error), error
else:
    raise AssertionError("a wrong observation was answered")
print("ok")
"""

SERVER = """
import sys
import numpy as np
from openpi_server.websocket_policy_server import WebsocketPolicyServer

class Policy:
    def infer(self, observation):
        assert observation["observation/image"].shape == (224, 224, 3)
        state = observation["observation/state"]
        return {"actions": np.tile(state[:7], (10, 1)), "state": state}

    def reset(self):
        pass

WebsocketPolicyServer(Policy(), host="127.0.0.1", port=int(sys.argv[1]), metadata={"robot": "libero"}).serve_forever()
"""
