"""Rollouts on inference servers (`vllm serve`): tokens in, tokens and log-probs out, adapters pushed as folders.

| file | what it holds |
|---|---|
| `protocol.py` | what is sent to a server and what must come back, as data; every answer is checked |
| `client.py` | one server over HTTP |
| `pool.py` | all servers: who is in, and what happens when one fails, is busy or takes long |
| `placement.py` | where rollouts go: to the quicker servers more of them |
| `adapters.py` | a version of the policy as a folder: written whole, loaded, proved, taken away again |
| `agent.py`, `session.py` | an `Agent` and its `AgentSession` on such a pool |
| `opening.py`, `news.py` | all of these as a configuration says; what becomes of servers, for the record |

No turn is ever written by another version than the one that was asked for. In order:

1. the adapters are written into a folder beside the others, synced, and renamed to `RUN-sSTEP-CHECKSUM` (of serving:
   `RUN-vVERSION-CHECKSUM`); a folder of that name is never changed (reloading a name in place would let a server reuse
   what the old weights had cached)
2. every server that is in loads it by that name, and must give the log-probs of a fixed text that the policy here gives
3. every request names it; an answer that does not name it back counts as a failure of the server
4. an older version that no rollout uses is unloaded everywhere, and its folder is deleted when the next one comes:
   a server that is asked for an adapter whose files are gone dies
"""
