"""What clusters.toml may say of a cluster, beside what every cluster may: one file per backend that has such keys. Pure."""
