"""When and where files were recorded, by which camera or recorder: groups and splits by it."""
