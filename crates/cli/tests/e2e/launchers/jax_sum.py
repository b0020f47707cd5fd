import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
mine = jnp.array([jax.process_index() + 1.0])
total = multihost_utils.process_allgather(mine).sum()
print(f"process {jax.process_index()} of {jax.process_count()}: sum {total:g}", flush=True)
