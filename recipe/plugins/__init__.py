"""What a training worker imports: agent function with abort hook, reward, group filter, rollout metrics.

Written once for both engines: signatures and behaviour are those of Miles at 80a25cb. Standard library and
httpx only, and nothing of recipe outside this folder: the folder alone travels to every node with the job.
Two files are for the cluster alone and import what is there: `rollout` Miles, `nodes` Ray.
"""
