"""Sites: ranks that are joined by fast links, and their counterparts at other sites behind slow ones.

Within a site gradients are averaged dense, each member for its shard of every parameter; between sites the holders of
one shard exchange it by a rule. A rank's memory covers its shard alone.
"""
