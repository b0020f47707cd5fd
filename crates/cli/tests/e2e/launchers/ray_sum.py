import ray

ray.init()


@ray.remote(num_gpus=1, scheduling_strategy="SPREAD")
def where(n):
    return ray.get_runtime_context().get_node_id(), n


answers = ray.get([where.remote(n) for n in range(1, 5)])
nodes = {node for node, _ in answers}
alive = [n for n in ray.nodes() if n["Alive"]]
gpus = ray.cluster_resources()["GPU"]
print(f"{len(alive)} nodes, {gpus:g} GPUs: sum {sum(n for _, n in answers)}", flush=True)
