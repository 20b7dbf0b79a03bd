"""The settings of the sandbox cluster on Google Kubernetes Engine, as data; recipe/settings.py has all others."""

from __future__ import annotations

from pydantic import BaseModel

from recipe.forms import setting


class GkeSettings(BaseModel):
    """What `recipe gke` and the backend gke read."""

    gke_project_id: str | None = setting(None, meaning="Google Cloud project of the sandbox cluster")
    gke_region: str | None = setting(None, meaning="its region")
    gke_cluster_name: str | None = setting(None, meaning="its name")
    gke_tools_image: str | None = setting(None, meaning="the sandboxes' tools, as an image by digest")
