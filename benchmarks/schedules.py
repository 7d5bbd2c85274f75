CLOCKS={"tenuto":"x"}
async def schedules(a,b): return []
