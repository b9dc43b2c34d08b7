"""A live pool whose nodes have slow links: does a promise count on the speed of the place that its job gets?"""
