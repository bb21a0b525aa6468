"""Rollouts on inference servers (`vllm serve`): tokens in, tokens and log-probs out, adapters as folders.

`protocol.py`: requests and checked answers as data. `client.py`: one server over HTTP. `server.py`: the state of one
server. `pool.py`: all servers, with failures, pauses and slow turns. `placement.py`: the distribution of rollouts over
servers. `adapters.py`: a policy version as a folder, loaded, verified and unloaded. `agent.py`: an `Agent`, its
session, and the agent of a configuration.

The requested version writes every turn: 1. The adapters are written into a new folder, synced, and renamed to
`RUN-sSTEP-CHECKSUM` (while serving: `RUN-vVERSION-CHECKSUM`). A folder of that name is never changed, because a server
could reuse cached results of the old weights. 2. Every available server loads it by that name, and must give the
policy's log-probs of a fixed text. 3. Every request names it. An answer that names another version counts as a failure
of the server. 4. An old version without rollouts is unloaded everywhere. Its folder is deleted when the next one comes,
because a server crashes if the files of a requested adapter are gone.
"""
