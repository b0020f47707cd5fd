# The textbook example: nothing in it knows who started it.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)

torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.full((2, 4), float(rank))).sum()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

# After steps on different data all ranks have the same weights.
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
first = weights.clone()
dist.broadcast(first, 0)
same = bool(torch.allclose(weights, first))
print(f"rank {rank} of {world}: sum {total.item():g}, same weights {same}", flush=True)
dist.destroy_process_group()
